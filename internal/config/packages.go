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
	for _, u := range units {
		digits, ok := strings.CutSuffix(c.PackageCache, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 20)
		if bytes := int64(n) * u.bytes; err == nil && bytes >= minPackages {
			return bytes, nil
		}
		break
	}
	return 0, cay.Errorf(cay.Invalid, "package cache %q is not a size of at least 256MiB, such as 10GiB", c.PackageCache)
}
