"""Resource models of group serving.octavo.dev; the CRDs are generated from them."""
