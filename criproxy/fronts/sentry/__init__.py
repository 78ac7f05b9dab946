"""What keeps offline containers out while criproxy is not the runtime's plugin: started by the runtime itself."""
