package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/packages"
)

// openPackages opens the cache of packages, if there is to be one.
func (s *Server) openPackages() error {
	limit, err := s.cfg.PackageBytes()
	if err != nil || limit == 0 {
		return err
	}
	hosts := packages.DefaultHosts()
	if len(s.cfg.PackageHosts) > 0 {
		if hosts, err = packages.ParseHosts(strings.Join(s.cfg.PackageHosts, ",")); err != nil {
			return err
		}
	}
	s.packages, err = packages.Open(packages.Config{
		Dir: filepath.Join(s.cfg.Data, "packages"), Limit: limit, Hosts: hosts, Log: s.log,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.egress.DialHost(ctx, network, address)
		},
	})
	if err != nil {
		return err
	}
	s.later(func() error { s.packages.Close(); return nil })
	return nil
}

// packagesOn reports whether a configuration has a cache of packages.
func packagesOn(cfg config.Config) bool {
	limit, err := cfg.PackageBytes()
	return err == nil && limit > 0
}

// packageRoutes are the operator's.
func (s *Server) packageRoutes(routes *http.ServeMux) {
	answer := func(w http.ResponseWriter, out PackageReport) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // who asked may be gone
	}
	routes.HandleFunc("GET /packages", func(w http.ResponseWriter, _ *http.Request) {
		if s.packages == nil {
			answer(w, PackageReport{})
			return
		}
		answer(w, PackageReport{On: true, Stats: s.packages.Stats()})
	})
	routes.HandleFunc("DELETE /packages", func(w http.ResponseWriter, _ *http.Request) {
		if s.packages == nil {
			answer(w, PackageReport{})
			return
		}
		out := PackageReport{On: true}
		var err error
		if out.RemovedFiles, out.RemovedBytes, err = s.packages.Clear(); err != nil {
			out.Error = err.Error()
		}
		out.Stats = s.packages.Stats()
		answer(w, out)
	})
}

// PackageReport is what a server says of its cache of packages.
type PackageReport struct {
	On bool `json:"on"`
	packages.Stats
	RemovedFiles int    `json:"removedFiles,omitempty"`
	RemovedBytes int64  `json:"removedBytes,omitempty"`
	Error        string `json:"error,omitempty"`
}

// Packages asks the server of a configuration about its cache of packages,
// which clear empties.
func Packages(ctx context.Context, cfg config.Config, clear bool) (PackageReport, error) {
	method := http.MethodGet
	if clear {
		method = http.MethodDelete
	}
	var out PackageReport
	err := askOperator(ctx, cfg, method, "/packages", &out)
	if err == nil && out.Error != "" {
		err = cay.Errorf(cay.Internal, "%s", out.Error)
	}
	return out, err
}

// writePackages writes the metrics of the cache.
func writePackages(w io.Writer, s packages.Stats) {
	line := func(name, kind, help string, value int64) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, help, name, kind, name, value)
	}
	line("cay_package_cache_files", "gauge", "Packages and index pages that are kept.", int64(s.Files))
	line("cay_package_cache_bytes", "gauge", "Their size.", s.Bytes)
	line("cay_package_cache_limit_bytes", "gauge", "The size that they may have.", s.Limit)
	line("cay_package_cache_hits_total", "counter", "Requests answered from the disk.", s.Hits)
	line("cay_package_cache_stale_total", "counter", "Those of them whose host could not be asked.", s.Stale)
	line("cay_package_cache_misses_total", "counter", "Requests answered by a fetch.", s.Misses)
	line("cay_package_cache_passed_total", "counter", "Requests passed on, with nothing to keep.", s.Passed)
	line("cay_package_cache_served_bytes_total", "counter", "Bytes that sandboxes got.", s.Served)
	line("cay_package_cache_fetched_bytes_total", "counter", "Bytes that were fetched for them.", s.Fetched)
}
