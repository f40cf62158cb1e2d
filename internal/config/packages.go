package config

import (
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// minPackages is the least that a cache of packages is of use with: a file may
// take half of it.
const minPackages = 256 << 20

// units of sizes, as people write them.
var units = []struct {
	name  string
	bytes int64
}{{"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}}

// PackageBytes is PackageCache in bytes; 0 for no cache.
func (c Config) PackageBytes() (int64, error) {
	if c.PackageCache == "" || c.PackageCache == "0" {
		return 0, nil
	}
	if bytes, ok := Size(c.PackageCache); ok && bytes >= minPackages {
		return bytes, nil
	}
	return 0, cay.Errorf(cay.Invalid, "package cache %q is not a size of at least 256MiB, such as 10GiB", c.PackageCache)
}

// Size is what a size means that a person wrote, such as 10GiB.
func Size(text string) (bytes int64, ok bool) {
	for _, u := range units {
		if digits, found := strings.CutSuffix(text, u.name); found {
			n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 20)
			return int64(n) * u.bytes, err == nil
		}
	}
	return 0, false
}
