"""Index files: container, layout, operating system files, archive."""
