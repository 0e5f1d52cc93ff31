"""What methods are made of: their base class, what travels, update rules, covers, mirror maps."""
