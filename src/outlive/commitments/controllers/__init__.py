"""The controllers of commitments: each looks at one object, decides by the pure modules, and acts."""
