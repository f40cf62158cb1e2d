package operator

import (
	"net/http"

	"github.com/cay-run/cay/internal/machine/pkgcache"
)

// packageRoutes tell of the cache of packages, and empty it.
func (d *Desk) packageRoutes(routes *http.ServeMux) {
	cache := d.cfg.Packages
	routes.HandleFunc("GET /packages", func(w http.ResponseWriter, _ *http.Request) {
		if cache == nil {
			answer(w, PackageReport{})
			return
		}
		answer(w, PackageReport{On: true, Stats: cache.Stats()})
	})
	routes.HandleFunc("DELETE /packages", func(w http.ResponseWriter, r *http.Request) {
		if cache == nil {
			answer(w, PackageReport{})
			return
		}
		out := PackageReport{On: true}
		var err error
		out.RemovedFiles, out.RemovedBytes, err = cache.Clear()
		if err = d.record(r.Context(), "packages.cleared", "", err); err != nil {
			out.Error = err.Error()
		}
		out.Stats = cache.Stats()
		answer(w, out)
	})
}

// PackageReport is what a server says of its cache of packages.
type PackageReport struct {
	On bool `json:"on"`
	pkgcache.Stats
	RemovedFiles int    `json:"removedFiles,omitempty"`
	RemovedBytes int64  `json:"removedBytes,omitempty"`
	Error        string `json:"error,omitempty"`
}
