// Package oci brings images of other people's making to this machine: from
// registries, from OCI layouts and from `docker save` archives. An image
// becomes a directory tree, unpacked by the code in this package, and a Config
// that says what programs in it expect.
//
// The host never runs a program of an image, and no path in it leads outside its
// tree: the kernel resolves every path as if the tree were the root of the file
// system, links included.
package oci

import "github.com/cay-run/cay"

// Config is what an image says about the programs in it.
type Config = cay.ImageConfig

// Image is an image on this machine.
type Image = cay.Image

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

// CredentialsOf returns what opens a registry; nil is anonymous.
func CredentialsOf(a *cay.RegistryAuth) Credentials {
	if a == nil {
		return Credentials{}
	}
	switch a.Type {
	case "aws":
		return Credentials{AWS: &AWSCredentials{AccessKeyID: a.AccessKeyID, SecretAccessKey: a.SecretAccessKey, Region: a.Region}}
	case "gcp":
		return Credentials{GCP: a.ServiceAccount}
	}
	return Credentials{Username: a.Username, Password: a.Password}
}

// Limits bound what an image may unpack to.
type Limits struct {
	Bytes   int64 // of file content
	Entries int   // files, directories and links, whiteouts counted
}

// DefaultLimits are for images that people really use; the largest with CUDA
// and everything have 30 GB.
var DefaultLimits = Limits{Bytes: 64 << 30, Entries: 2 << 20}
