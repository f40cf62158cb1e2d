package config

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// Bucket says where copies of snapshots go.
type Bucket struct {
	// Bucket is s3://NAME/PREFIX, or the absolute path of a directory; empty keeps no
	// copies.
	Bucket string `yaml:"bucket"`
	// PauseDurable has a pause that a client asks for answer when the bucket has what
	// was saved.
	PauseDurable bool `yaml:"pauseDurable"`
}

var bucketVariables = []Variable{
	{"CAY_BUCKET", "bucket", "where snapshots of sandboxes are copied to: s3://NAME/PREFIX, with AWS_ACCESS_KEY_ID and the other variables of AWS, or a directory [none]",
		func(c *Config, v string) error { c.Bucket.Bucket = v; return nil }},
	{"CAY_PAUSE_DURABLE", "pauseDurable", "true has a pause that a client asks for answer when the bucket has what was saved; false, when this machine has it, unless the request says durable [false]",
		func(c *Config, v string) (err error) { c.PauseDurable, err = strconv.ParseBool(v); return err }},
}

func (c Config) bucketProblems() []error {
	at := c.Bucket.Bucket
	if at == "" && c.PauseDurable {
		return []error{cay.Errorf(cay.Invalid, "pause durable: there is no bucket that a pause could wait for").WithHint("set CAY_BUCKET too")}
	}
	if at == "" || strings.HasPrefix(at, "s3://") || filepath.IsAbs(at) {
		return nil
	}
	return []error{cay.Errorf(cay.Invalid, "bucket %q is neither s3://NAME/PREFIX nor the absolute path of a directory", at)}
}
