// Package loadouts reads loadout/v1 documents: what a machine is made of and
// what its agent offers. Parse reads one document and reports everything that
// is wrong with it, each with its place; Combine and Resolve merge documents
// that extend one another into a Loadout with every default filled in.
//
// The package is pure: bytes in, values out. It opens no file, knows no host,
// and must not know what a driver can do; documents reach it through a Lookup.
//
//	bytes ─ Parse ─▶ Layer ─┐
//	bytes ─ Parse ─▶ Layer ─┼─ Combine ─▶ Loadout
//	bytes ─ Parse ─▶ Layer ─┘
//
// Merge rules (those published for loadout/v1): parents before children,
// depth first, left to right; a document that is reached twice counts once,
// at its first place. Then scalars: the last one wins. Lists of text: union,
// first place kept. Lists of objects: concatenation. Maps: key by key.
package loadouts
