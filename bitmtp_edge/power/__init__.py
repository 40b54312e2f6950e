"""Power and energy: sensors behind one protocol, a meter over them, and the board's power modes."""
