"""Index files, from bytes to indexes.

- `files.py`: what index files need from the operating system
- `checksum.py`, `layout.py`, `footer.py`, `sections.py`: the parts of the file format
- `commits.py`, `container.py`: a dict and named arrays as one file, and the text of the format
- `values.py`, `settings.py`, `segments.py`, `checking.py`: an index as a dict and named arrays
- `archive.py`, `saveable.py`: the file of one index, and the base class of indexes
"""
