// Memory and cost of an index, as on the page "Choosing". Plain JavaScript, no dependencies.
// `cbeindexBytes` returns bytes a row by part. A test compares it with `index.stats()`.
function cbeindexBytes({ rows, dim, bits, vectors, buckets, hamming }) {
  const n_bits = bits || dim;
  const parts = { ids: 8 };
  const hasCodes = hamming || !["cells", "graph"].includes(buckets);
  if (hasCodes) parts.codes = Math.ceil(n_bits / 64) * 8 + 12;
  if (buckets === "cells") {
    const width = n_bits < 200 ? 4 : 1;
    const centroids = (2 * Math.sqrt(rows) * Math.min(dim, 1024)) / rows;
    parts.buckets = ((width * n_bits) / 8 + 20) * 1.05 + 8 + centroids;
  } else if (buckets === "graph") {
    const levels = Math.min(n_bits, dim);
    const blocks = n_bits < dim ? 1 : Math.max(1, Math.min(4, Math.ceil(160 / levels)));
    const columns = Math.ceil((levels * blocks) / 16) * 16;
    parts.buckets = Math.ceil((4 * columns + 384 + levels + 12) / 64) * 64;
  } else if (buckets === "clusters") {
    parts.buckets = 10;
  } else if (buckets === "substrings") {
    const tableBits = Math.min(24, Math.max(8, Math.round(Math.log2(rows))));
    parts.buckets = Math.min(16, Math.floor(n_bits / tableBits)) * 8;
  }
  const perValue = { float32: 4, float16: 2, int8: 1, int4: 0.5 }[vectors] || 0;
  if (perValue) parts.vectors = dim * perValue + (perValue <= 1 ? 12 : 0);
  return parts;
}

// Rows that a search looks at. Measured shares of the rows that must be visited for recall 0.9, 0.95 and 0.99 in
// 60,000 rows; with twice the square root of the rows in cells, the number grows like the square root.
function cbeindexVisited({ rows, buckets, data, recall }) {
  if (!["cells", "clusters"].includes(buckets)) return buckets === "graph" ? { 0.9: 22, 0.95: 28, 0.99: 80 }[recall] * 32 : rows;
  const shares = { images: [0.011, 0.017, 0.038], words: [0.028, 0.058, 0.168], sentences: [0.032, 0.07, 0.23], none: [1, 1, 1] };
  const share = shares[data][{ 0.9: 0, 0.95: 1, 0.99: 2 }[recall]];
  return Math.min(rows, data === "none" ? rows : share * 60000 * Math.sqrt(rows / 60000));
}

(function () {
  const root = document.querySelector(".calculator");
  if (!root) return;
  const form = root.querySelector("form");
  const out = root.querySelector("output");
  const names = { ids: "ids", codes: "codes", buckets: "buckets", vectors: "vectors" };

  function bytes(value) {
    const units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let i = 0;
    while (value >= 1000 && i < units.length - 1) {
      value /= 1000;
      i += 1;
    }
    return `${value >= 100 || i === 0 ? Math.round(value) : value.toPrecision(2)} ${units[i]}`;
  }

  function read() {
    const fields = new FormData(form);
    const number = (name) => Math.max(1, Number(String(fields.get(name)).replace(/[ ,_]/g, "")) || 0);
    return {
      rows: number("rows"),
      dim: number("dim"),
      bits: fields.get("bits") ? number("bits") : 0,
      vectors: fields.get("vectors"),
      buckets: fields.get("buckets"),
      data: fields.get("data"),
      recall: Number(fields.get("recall")),
      hamming: fields.get("hamming") !== null,
    };
  }

  function draw() {
    const asked = read();
    const parts = cbeindexBytes(asked);
    const row = Object.values(parts).reduce((a, b) => a + b, 0);
    const visited = cbeindexVisited(asked);
    const codeBytes = asked.buckets === "cells" ? parts.buckets : (asked.bits || asked.dim) / 8;
    const touched = asked.buckets === "graph" ? (visited / 32) * parts.buckets : visited * codeBytes;
    const float32 = asked.dim * 4;
    let x = 0;
    const bars = Object.entries(parts)
      .map(([name, value]) => {
        const width = (360 * value) / Math.max(row, float32);
        const bar = `<rect class="part ${name}" x="${x}" y="18" width="${width}" height="22"/>`;
        x += width;
        return bar;
      })
      .join("");
    const whole = (360 * float32) / Math.max(row, float32);
    const legend = Object.entries(parts)
      .map(([name, value]) => `<li class="${name}">${names[name]} <b>${bytes(value)}</b></li>`)
      .join("");
    out.innerHTML = `
      <p class="total"><b>${bytes(row * asked.rows)}</b> for ${asked.rows.toLocaleString("en")} rows, ${bytes(row)} a row.
      The vectors alone in float32 are ${bytes(float32 * asked.rows)}.</p>
      <svg viewBox="0 0 360 62" role="img" aria-label="bytes a row by part">
        <text x="0" y="12">bytes a row</text>${bars}
        <rect class="part float32" x="0" y="46" width="${whole}" height="5"/>
      </svg>
      <ul>${legend}<li class="float32">vectors in float32, for comparison <b>${bytes(float32)}</b></li></ul>
      <p>A query looks at about <b>${Math.round(visited).toLocaleString("en")}</b> rows and reads about
      <b>${bytes(touched)}</b>: at 10 GB a second, <b>${Math.max(1, Math.round(touched / 1e4)).toLocaleString("en")} µs</b>.</p>`;
  }

  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  draw();
})();
