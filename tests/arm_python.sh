#!/usr/bin/env bash
# Make FOLDER/python, a Python for 64-bit Arm that runs under emulation: tests/arm_python.sh FOLDER
# Debian packages of the emulator and of Python are unpacked into the folder, and wheels are installed beside them. Nothing
# is installed on the machine, so root is not needed. Needs apt, dpkg, and a python3 with pip.
set -euo pipefail
mkdir -p "$1"
home=$(cd "$1" && pwd)

# Downloads packages of one architecture, and all that they need, and unpacks them.
unpack() {
    local architecture=$1 target=$2
    shift 2
    local apt="$home/apt-$architecture"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$target"
    : >"$apt/status"
    local options=(
        -qq -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o "APT::Sandbox::User="
        -o "Dir::State=$apt" -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
        -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives"
    )
    # A source that lacks the architecture, or cannot be reached, does not matter if the others have the packages.
    apt-get "${options[@]}" update || true
    apt-get "${options[@]}" install --yes --download-only --no-install-recommends "$@"
    local package
    for package in "$apt"/archives/*.deb; do
        dpkg -x "$package" "$target"
    done
    rm -rf "$apt"
}

unpack "$(dpkg --print-architecture)" "$home/emulator" qemu-user-static
unpack arm64 "$home/root" python3 libstdc++6

interpreter=$(basename "$(readlink -f "$home/root/usr/bin/python3")")
"${PYTHON:-python3}" -m pip install --quiet --target "$home/site" --upgrade --only-binary=:all: --implementation cp \
    --python-version "${interpreter#python}" --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_28_aarch64 numpy scipy numba pytest pytest-timeout hypothesis tqdm

# Tests that start a process run sys.executable, which has to be the emulated Python as a whole.
echo "import sys; sys.executable = '$home/python'" >"$home/site/sitecustomize.py"

cat >"$home/python.new" <<END
#!/usr/bin/env bash
# A Python for 64-bit Arm under emulation, made by tests/arm_python.sh.
export NUMBA_CACHE_DIR="\${NUMBA_CACHE_DIR:-$home/numba}" PYTHONPATH="$home/site\${PYTHONPATH:+:\$PYTHONPATH}"
exec "$home/emulator/usr/bin/qemu-aarch64-static" -L "$home/root" "$home/root/usr/bin/$interpreter" "\$@"
END
chmod +x "$home/python.new"
mv "$home/python.new" "$home/python"
