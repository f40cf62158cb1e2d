// Package oci brings images of other people's making to this machine: from
// registries, from OCI layouts and from `docker save` archives. An image
// becomes a directory tree, unpacked by the code in this package, and a Config
// that says what programs in it expect.
//
// The host never runs a program of an image, and no path in it leads outside its
// tree: the kernel resolves every path as if the tree were the root of the file
// system, links included.
package oci

import "time"

// Config is what an image says about the programs in it.
type Config struct {
	Env         []string `json:"env,omitempty"` // NAME=value
	User        string   `json:"user,omitempty"`
	WorkingDir  string   `json:"workingDir,omitempty"`
	Entrypoint  []string `json:"entrypoint,omitempty"`
	Cmd         []string `json:"cmd,omitempty"`
	Shell       []string `json:"shell,omitempty"`
	OnBuild     []string `json:"onBuild,omitempty"`
	StopSignal  string   `json:"stopSignal,omitempty"`
	Healthcheck []string `json:"healthcheck,omitempty"` // ["CMD", …] or ["CMD-SHELL", line]
}

// Image is an image on this machine.
type Image struct {
	// Digest is of the image's configuration, as sha256:<hexadecimal>: equal
	// digests are equal trees, however the layers were packed.
	Digest  string    `json:"digest"`
	Names   []string  `json:"names"` // references under which it is known, sorted
	Config  Config    `json:"config"`
	Size    int64     `json:"size"`  // bytes of the files in the tree
	Files   int       `json:"files"` // entries in the tree
	Created time.Time `json:"created"`
	// Imported says that it came from a file: its names are never asked of a
	// registry.
	Imported bool `json:"imported,omitempty"`
}

// Credentials open a private registry. The zero value is anonymous. They are
// never logged or kept.
type Credentials struct {
	Username string
	Password string
	// AWS and GCP are exchanged for a password by their registries' rules.
	AWS *AWSCredentials
	GCP string // a service account's key, JSON
}

// AWSCredentials open an Elastic Container Registry.
type AWSCredentials struct {
	AccessKeyID     string
	SecretAccessKey string
	Region          string
}

// Limits bound what an image may unpack to.
type Limits struct {
	Bytes   int64 // of file content
	Entries int   // files, directories and links, whiteouts counted
}

// DefaultLimits are for images that people really use; the largest with CUDA
// and everything have 30 GB.
var DefaultLimits = Limits{Bytes: 64 << 30, Entries: 2 << 20}
