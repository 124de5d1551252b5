"""The formats of the field, one module each: readers that stream records, and the ways back."""
