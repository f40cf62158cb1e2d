package cay

import "time"

// Image is a container image of a team, on the machine that builds.
type Image struct {
	// Digest is of the image's configuration, as sha256:<hexadecimal>: equal
	// digests are equal trees, however the layers were packed.
	Digest  string      `json:"digest"`
	Names   []string    `json:"names"` // references under which it is known, sorted
	Config  ImageConfig `json:"config"`
	Size    int64       `json:"size"`  // bytes of the files in the tree
	Files   int         `json:"files"` // entries in the tree
	Created time.Time   `json:"created"`
	// Imported says that it came from a file: its names are never asked of a
	// registry.
	Imported bool `json:"imported,omitempty"`
}

// ImageConfig is what an image says about the programs in it.
type ImageConfig struct {
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
