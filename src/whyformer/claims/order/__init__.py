"""Order: attention alone is blind to it; a mask, a bias or positions let it see."""
