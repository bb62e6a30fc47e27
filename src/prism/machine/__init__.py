"""How Prism touches a machine, each in one place: durable and private files, processes, host lists."""
