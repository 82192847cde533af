"""Published binary codes that the circulant encoder is compared with.

LSH, bilinear codes, ITQ, spectral hashing, SKLSH and AQBC, each in a file of its own. They share `parametric` (storing
and checking parameters) and `matrices` (products, principal axes, rotations).
"""
