"""Mesh, communication, and the ways to cut a model over the ranks of a replica."""
