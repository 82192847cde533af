"""From a request to results: plan, candidates (scan, cascade, buckets), re-ranking."""
