"""DPlis (Wang et al., PETS 2021): what judges its claims, by subject."""
