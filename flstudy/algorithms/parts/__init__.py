"""Parts of methods: their base class, messages, update rules, covers, mirror maps."""
