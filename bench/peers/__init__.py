"""The same model behind other servers, each as its own documentation recommends, in an environment of its own."""
