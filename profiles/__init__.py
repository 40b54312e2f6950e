"""What is known of each device: one TOML file a device, read as package data."""
