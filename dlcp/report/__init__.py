"""Parts of reports: pages that need nothing else, charts as inline SVG, tables, and timelines for Perfetto."""
