package image

// devcontainers is the command line of the Development Containers specification, in the
// release that make test-docker tries.
const devcontainers = "@devcontainers/cli@0.89.0"

// Devcontainer is Docker with what E2B's SDKs call to build and start development
// containers in a template's build.
func Devcontainer() Recipe {
	docker := Docker()
	return Recipe{
		Name:  "devcontainer",
		From:  &docker,
		Files: []File{{Path: "/prepare-exec.sh", Mode: 0o755, Data: []byte(prepareExec)}},
		Steps: []Step{
			{Name: "install devcontainer", Script: "npm install --global --no-audit --no-fund --loglevel=error " + devcontainers},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// The SDKs write what it prints to /devcontainer.sh, which then runs a command in
// the container of a folder, or a shell.
const prepareExec = `#!/bin/sh
folder=$(printf %s "$1" | sed "s/'/'\\\\''/g")
cat <<EOF
#!/bin/sh
[ \$# -gt 0 ] || set -- sh
exec devcontainer exec --workspace-folder '$folder' "\$@"
EOF
`
