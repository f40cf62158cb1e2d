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

// flatName names the root image that is a base with a layer, written anew.
func flatName(root, layer string) string { return digest("flat 2", root, layer) }

// extendedName names the image that is another one with a layer behind it. Its
// files are those of an image written anew, and lie elsewhere: what was saved on
// the one does not start on the other.
func extendedName(image, layer string) string { return digest("extended 1", image, layer) }

// filesKey is the key of the files that a base with a layer has; it stands for the
// image that was made of them, of whichever name.
func filesKey(root, layer string) string { return digest("files 1", root, layer) }
