package config

import (
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
)

// Bucket says where copies of snapshots go.
type Bucket struct {
	// Bucket is s3://NAME/PREFIX, or the absolute path of a directory; empty keeps no
	// copies.
	Bucket string `yaml:"bucket"`
}

var bucketVariables = []Variable{
	{"CAY_BUCKET", "bucket", "where snapshots of sandboxes are copied to: s3://NAME/PREFIX, with AWS_ACCESS_KEY_ID and the other variables of AWS, or a directory [none]",
		func(c *Config, v string) error { c.Bucket.Bucket = v; return nil }},
}

func (c Config) bucketProblems() []error {
	at := c.Bucket.Bucket
	if at == "" || strings.HasPrefix(at, "s3://") || filepath.IsAbs(at) {
		return nil
	}
	return []error{cay.Errorf(cay.Invalid, "bucket %q is neither s3://NAME/PREFIX nor the absolute path of a directory", at)}
}
