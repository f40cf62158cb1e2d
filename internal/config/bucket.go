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
	// Cache is how much of the disk what the bucket has may take here as well: a size, such as
	// 40GiB, or a percentage; empty for the usual one.
	Cache string `yaml:"cache"`
	// PauseDurable has a pause that a client asks for answer when the bucket has what
	// was saved.
	PauseDurable bool `yaml:"pauseDurable"`
}

var bucketVariables = []Variable{
	{"CAY_BUCKET", "bucket", "where snapshots of sandboxes are copied to: s3://NAME/PREFIX, with AWS_ACCESS_KEY_ID and the other variables of AWS, or a directory [none]",
		func(c *Config, v string) error { c.Bucket.Bucket = v; return nil }},
	{"CAY_CACHE", "cache", "disk for snapshots of teams' and their root images that the bucket has too, e.g. 40GiB or 60%: beyond it, those used least recently are in the bucket alone [60% of the disk]",
		func(c *Config, v string) error { c.Bucket.Cache = v; return nil }},
	{"CAY_PAUSE_DURABLE", "pauseDurable", "true has a pause that a client asks for answer when the bucket has what was saved; false, when this machine has it, unless the request says durable [false]",
		func(c *Config, v string) (err error) { c.PauseDurable, err = strconv.ParseBool(v); return err }},
}

// usualCache is the part of the disk that the cache may take, in percent.
const usualCache = 60

// CacheBytes is Cache in bytes, on a disk of so many.
func (c Config) CacheBytes(disk int64) (int64, error) {
	if c.Bucket.Cache == "" {
		return disk / 100 * usualCache, nil
	}
	if bytes, ok := Size(c.Bucket.Cache); ok {
		return bytes, nil
	}
	digits, percent := strings.CutSuffix(c.Bucket.Cache, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !percent || n < 1 || n > 100 {
		return 0, cay.Errorf(cay.Invalid, "cache %q is neither a size such as 40GiB nor a percentage of the disk, 1%% to 100%%", c.Bucket.Cache)
	}
	return disk / 100 * int64(n), nil
}

func (c Config) bucketProblems() []error {
	at := c.Bucket.Bucket
	if _, err := c.CacheBytes(0); err != nil {
		return []error{err}
	}
	if at == "" && c.Bucket.Cache != "" {
		return []error{cay.Errorf(cay.Invalid, "cache: there is no bucket that has what it evicts").WithHint("set CAY_BUCKET too")}
	}
	if at == "" && c.PauseDurable {
		return []error{cay.Errorf(cay.Invalid, "pause durable: there is no bucket that a pause could wait for").WithHint("set CAY_BUCKET too")}
	}
	if at == "" || strings.HasPrefix(at, "s3://") || filepath.IsAbs(at) {
		return nil
	}
	return []error{cay.Errorf(cay.Invalid, "bucket %q is neither s3://NAME/PREFIX nor the absolute path of a directory", at)}
}
