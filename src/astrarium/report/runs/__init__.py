"""What was measured, as text: a `calibration`, `learned` factors, a `dry` run, an `execution`."""
