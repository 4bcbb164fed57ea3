"""Plans: options, placement of panels, tile sizes, memory."""
