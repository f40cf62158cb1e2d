package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// digest names a list of values.
func digest(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		panic(err) // plain data: it cannot fail
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// flatName names the root image that is a base with a layer.
func flatName(root, layer string) string { return digest("flat 1", root, layer) }
