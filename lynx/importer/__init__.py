"""From FX graphs to Lynx graphs: one import rule for each torch operator."""
