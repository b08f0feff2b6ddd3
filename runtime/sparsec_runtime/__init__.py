"""The engine that runs compiled methods. It knows artifacts and the ABI, never the compiler."""
