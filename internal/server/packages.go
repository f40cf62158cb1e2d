package server

import (
	"context"
	"net"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay/internal/machine/pkgcache"
)

// openPackages opens the cache of packages, if there is to be one.
func (s *Server) openPackages() error {
	limit, err := s.cfg.PackageBytes()
	if err != nil || limit == 0 {
		return err
	}
	hosts := pkgcache.DefaultHosts()
	if len(s.cfg.PackageHosts) > 0 {
		if hosts, err = pkgcache.ParseHosts(strings.Join(s.cfg.PackageHosts, ",")); err != nil {
			return err
		}
	}
	s.packages, err = pkgcache.Open(pkgcache.Config{
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
