"""The second front: a plugin of the runtime's Node Resource Interface, which has each container made in the box."""
