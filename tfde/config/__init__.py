"""What a user may choose, as frozen dataclasses, and how YAML and JSON become them."""
