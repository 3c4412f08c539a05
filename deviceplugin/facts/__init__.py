"""The facts that doctor's diagnosis is made from."""
