"""``bitmtp-edge profile``: tokens a second and joules a token, by power mode and policy."""
