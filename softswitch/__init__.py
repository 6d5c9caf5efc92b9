"""A P4 target that installs with pip: runs the BMv2 JSON of v1model programs, and speaks P4Runtime."""
