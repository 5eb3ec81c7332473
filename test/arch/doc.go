// Package arch holds the rules of the tree as tests: which package may import
// which and why, what pure packages must not touch, how large a file may be,
// and which names say nothing. It looks at source text only and imports
// nothing of ours.
package arch
