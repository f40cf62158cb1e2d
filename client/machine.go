package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Check is one thing that a server looked at of its machine.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, warn or fail
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// Garbage is something on a machine that nothing needs.
type Garbage struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// PackageCache is what the cache of packages of a machine holds, and did.
type PackageCache struct {
	Files        int   `json:"files"`
	Bytes        int64 `json:"bytes"`
	LimitBytes   int64 `json:"limitBytes"`
	Hits         int64 `json:"hits"`
	Stale        int64 `json:"stale"`
	Misses       int64 `json:"misses"`
	Passed       int64 `json:"passed"`
	ServedBytes  int64 `json:"servedBytes"`
	FetchedBytes int64 `json:"fetchedBytes"`
}

// ClearedPackages is what was removed from a cache of packages.
type ClearedPackages struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// MachineStorage is the file system that a data directory may have of its own.
type MachineStorage struct {
	DataDirectory string `json:"dataDirectory"`
	Own           bool   `json:"own"`
	Down          bool   `json:"down,omitempty"`
	Device        string `json:"device,omitempty"`
	Direct        bool   `json:"direct,omitempty"`
	Bytes         int64  `json:"bytes,omitempty"`
	FreeBytes     int64  `json:"freeBytes,omitempty"`
}

// MachineSnapshot is a snapshot of a machine.
type MachineSnapshot struct {
	ID        string     `json:"snapshotID"`
	Kind      string     `json:"kind,omitempty"` // empty where its record cannot be read
	Team      string     `json:"teamID,omitempty"`
	Sandbox   string     `json:"sandboxID,omitempty"`
	Bytes     int64      `json:"bytes,omitempty"`
	CreatedAt *time.Time `json:"createdAt,omitempty"`
	Evicted   bool       `json:"evicted,omitempty"` // the bucket alone has its files
}

// VerifiedSnapshot is what a snapshot was found to be.
type VerifiedSnapshot struct {
	ID     string `json:"snapshotID"`
	Damage string `json:"damage,omitempty"`
}

// onMachine is the path of a matter of a machine: of a cluster's node, or without one of
// the server that answers.
func onMachine(of, node string) string {
	path := "/cay/v1/admin/" + of
	if node != "" {
		path += "?" + url.Values{"nodeID": {node}}.Encode()
	}
	return path
}

// Checks looks a machine over. This call and the others of machines need an AdminToken.
func (c *Client) Checks(ctx context.Context, node string) (out []Check, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("checks", node), nil, &out)
	return out, err
}

// Garbage lists what nothing on a machine needs, and CollectGarbage removes it.
func (c *Client) Garbage(ctx context.Context, node string) (out []Garbage, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("garbage", node), nil, &out)
	return out, err
}

// CollectGarbage removes what nothing on a machine needs.
func (c *Client) CollectGarbage(ctx context.Context, node string) (out []Garbage, err error) {
	_, err = c.call(ctx, http.MethodDelete, onMachine("garbage", node), nil, &out)
	return out, err
}

// PackageCache tells of the cache of packages of a machine.
func (c *Client) PackageCache(ctx context.Context, node string) (out PackageCache, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("package-cache", node), nil, &out)
	return out, err
}

// ClearPackageCache empties it.
func (c *Client) ClearPackageCache(ctx context.Context, node string) (out ClearedPackages, err error) {
	_, err = c.call(ctx, http.MethodDelete, onMachine("package-cache", node), nil, &out)
	return out, err
}

// MachineStorage tells of the file system of a data directory.
func (c *Client) MachineStorage(ctx context.Context, node string) (out MachineStorage, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("storage", node), nil, &out)
	return out, err
}

// MachineSnapshots lists the snapshots of a machine, of all teams.
func (c *Client) MachineSnapshots(ctx context.Context, node string) (out []MachineSnapshot, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("snapshots", node), nil, &out)
	return out, err
}

// VerifySnapshot has a machine read a snapshot and compare it with its record.
func (c *Client) VerifySnapshot(ctx context.Context, node, id string) (out VerifiedSnapshot, err error) {
	_, err = c.call(ctx, http.MethodGet, onMachine("snapshots/"+url.PathEscape(id)+"/verification", node), nil, &out)
	return out, err
}
