// Package fleet is the application: it owns the instances of one host, their
// operations and their supervision, over a store, an image store and drivers.
// It knows no HTTP, no A2A and no command line; management and a2a are thin
// readers and callers of it.
package fleet
