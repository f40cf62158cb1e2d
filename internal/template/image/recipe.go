// Package image makes root images. A Recipe becomes a directory tree (Debian
// packages by mmdebstrap, node from npm, wheels from PyPI), and the tree with
// what belongs to this host and this build of Cay becomes one EROFS file.
//
// Trees are kept under <data>/trees/<recipe digest>, because they are what
// takes minutes; an image is made of one in seconds. Programs of a tree run
// in a mount and process namespace of their own, so that neither a failure
// nor kill -9 leaves a mount or a process behind.
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
)

// treeFormat is raised when the same recipe would give another tree.
const treeFormat = 1

// Recipe says how a tree is made. Its fields take effect in their order.
type Recipe struct {
	// Name is for people; two names of one content have two digests.
	Name string `json:"name"`
	// From is the recipe whose tree this one begins with. Without it the
	// tree begins with Debian of the Suite.
	From *Recipe `json:"from,omitempty"`
	// Suite and Packages are Debian's; with From the suite is that one's.
	Suite    string   `json:"suite,omitempty"`
	Packages []string `json:"packages,omitempty"`
	// Node and NPM are version ranges of node and npm; empty for neither.
	Node string `json:"node,omitempty"`
	NPM  string `json:"npm,omitempty"`
	// Files are written, each replacing what is there.
	Files []File `json:"files,omitempty"`
	// Python are requirements that pip installs, from wheels only.
	Python []string `json:"python,omitempty"`
	// Steps run as root inside the tree.
	Steps []Step `json:"steps,omitempty"`
}

// File is a regular file of a tree, owned by root. Path is absolute.
type File struct {
	Path string      `json:"path"`
	Mode fs.FileMode `json:"mode"`
	Data []byte      `json:"data"`
}

// Step is a shell script; any command that fails ends it.
type Step struct {
	Name   string `json:"name"` // for progress, e.g. "build the font cache"
	Script string `json:"script"`
}

// Progress is told what is being done. percent is of the whole work, or
// negative when it is unknown. It must not block.
type Progress func(step string, percent int)

// Digest names the recipe's content: hexadecimal SHA-256.
func (r Recipe) Digest() string {
	text, err := json.Marshal(struct {
		Format int
		Recipe Recipe
	}{treeFormat, r})
	if err != nil {
		panic(err) // plain data: it cannot fail
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// FilesDigest names the content of files, in their order.
func FilesDigest(files []File) string {
	text, err := json.Marshal(files)
	if err != nil {
		panic(err) // plain data: it cannot fail
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
