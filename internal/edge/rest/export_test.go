package rest

import (
	"maps"
	"slices"
)

// Exceptions are the operations whose class is not that of their method.
func Exceptions() []string { return slices.Sorted(maps.Keys(classes)) }
