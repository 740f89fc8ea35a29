// Stands in for a Gloo header that torch wheels do not ship; ../README.md says why it may be empty.
