package image

import "strings"

// channels is where Xfce's settings lie for users that have chosen none.
const channels = "/etc/xdg/xfce4/xfconf/xfce-perchannel-xml"

// viewerDir is where E2B's Desktop SDKs look for noVNC.
const viewerDir = "/opt/noVNC"

// Desktop is Base with a screen: an X server without a monitor, Xfce, what
// E2B's Desktop SDKs move the mouse and take pictures with, a viewer for
// browsers, and a browser.
func Desktop() Recipe {
	base := Base()
	return Recipe{
		Name: "desktop",
		From: &base,
		Packages: strings.Fields(`
			xvfb x11-utils x11-xserver-utils xdotool scrot x11vnc
			xfce4-session xfwm4 xfdesktop4 xfce4-panel xfce4-settings
			xfce4-terminal thunar mousepad ristretto
			dbus-x11 xdg-utils libgtk-3-bin desktop-file-utils
			shared-mime-info librsvg2-common adwaita-icon-theme
			fonts-dejavu-core chromium ` + scripts),
		Files: []File{
			{Path: "/etc/chromium/policies/managed/cay.json", Mode: 0o644, Data: []byte(browserPolicies)},
			{Path: "/etc/chromium.d/cay", Mode: 0o644, Data: []byte(browserFlags)},
			{Path: "/usr/share/applications/google-chrome.desktop", Mode: 0o644, Data: []byte(browserEntry)},
			{Path: channels + "/xfce4-panel.xml", Mode: 0o644, Data: []byte(panel)},
			{Path: channels + "/xfce4-desktop.xml", Mode: 0o644, Data: []byte(backdrop)},
			{Path: channels + "/xfwm4.xml", Mode: 0o644, Data: []byte(windows)},
			{Path: viewerDir + "/utils/websockify/run", Mode: 0o755, Data: []byte(websockify)},
		},
		Steps: []Step{
			{Name: "add the viewer", Script: viewer},
			{Name: "set the desktop up", Script: session + shortcuts},
			{Name: "choose the programs", Script: programs},
			{Name: "tidy up", Script: tidy},
		},
	}
}

// Debian's package of noVNC wants a node and a numpy of its own, which a
// viewer does without: the files are all that is taken of it.
const viewer = `
cd /tmp
apt-get download -q novnc python3-websockify
for package in *.deb; do dpkg-deb -x $package .; done
cp -R usr/share/novnc/. usr/share/doc/novnc/copyright ` + viewerDir + `
cp -R usr/lib/python3/dist-packages/websockify ` + viewerDir + `/utils/websockify
python3 -m compileall -q ` + viewerDir + `
`

// Without numpy it decodes what browsers send in Python, which is keys and
// movements of the mouse; its warning would be all that its log says.
const websockify = `#!/bin/sh
PYTHONPATH=$(dirname "$0") exec /usr/bin/python3 -W ignore -m websockify "$@"
`

// browserFlags are part of the browser's start, by whatever it is started. Its
// own sandbox needs what gVisor does not have, and is not needed in one; what
// tells so to people would stand above every page.
const browserFlags = `export CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --test-type --no-first-run --no-default-browser-check --password-store=basic --enable-unsafe-swiftshader"
`

// browserPolicies have the browser ask nothing when it starts for the first
// time, and send nothing unasked.
const browserPolicies = `{
  "BackgroundModeEnabled": false,
  "BrowserSignin": 0,
  "DefaultBrowserSettingEnabled": false,
  "MetricsReportingEnabled": false,
  "PasswordManagerEnabled": false,
  "PromotionsEnabled": false,
  "SearchSuggestEnabled": false,
  "SyncDisabled": true,
  "TranslateEnabled": false
}
`

// browserEntry is the browser under the name by which E2B's examples launch
// theirs.
const browserEntry = `[Desktop Entry]
Type=Application
Name=Chromium
Exec=/usr/bin/chromium %U
Icon=chromium
StartupWMClass=chromium
StartupNotify=true
NoDisplay=true
`

// panel is one bar at the top. With a configuration there, the panel does not
// ask for one when it starts for the first time.
const panel = `<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-panel" version="1.0">
  <property name="configver" type="int" value="2"/>
  <property name="panels" type="array">
    <value type="int" value="1"/>
    <property name="dark-mode" type="bool" value="true"/>
    <property name="panel-1" type="empty">
      <property name="position" type="string" value="p=6;x=0;y=0"/>
      <property name="length" type="uint" value="100"/>
      <property name="position-locked" type="bool" value="true"/>
      <property name="icon-size" type="uint" value="16"/>
      <property name="size" type="uint" value="28"/>
      <property name="plugin-ids" type="array">
        <value type="int" value="1"/>
        <value type="int" value="2"/>
        <value type="int" value="3"/>
        <value type="int" value="4"/>
        <value type="int" value="5"/>
        <value type="int" value="6"/>
        <value type="int" value="7"/>
      </property>
    </property>
  </property>
  <property name="plugins" type="empty">
    <property name="plugin-1" type="string" value="applicationsmenu"/>
    <property name="plugin-2" type="string" value="launcher">
      <property name="items" type="array"><value type="string" value="xfce4-terminal-emulator.desktop"/></property>
    </property>
    <property name="plugin-3" type="string" value="launcher">
      <property name="items" type="array"><value type="string" value="xfce4-file-manager.desktop"/></property>
    </property>
    <property name="plugin-4" type="string" value="launcher">
      <property name="items" type="array"><value type="string" value="xfce4-web-browser.desktop"/></property>
    </property>
    <property name="plugin-5" type="string" value="tasklist"/>
    <property name="plugin-6" type="string" value="separator">
      <property name="expand" type="bool" value="true"/>
      <property name="style" type="uint" value="0"/>
    </property>
    <property name="plugin-7" type="string" value="clock"/>
  </property>
</channel>
`

// backdrop is one colour: a picture would be most of every screenshot.
const backdrop = `<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-desktop" version="1.0">
  <property name="backdrop" type="empty">
    <property name="screen0" type="empty">
      <property name="monitorscreen" type="empty">
        <property name="workspace0" type="empty">
          <property name="color-style" type="int" value="0"/>
          <property name="image-style" type="int" value="0"/>
          <property name="rgba1" type="array">
            <value type="double" value="0.13"/>
            <value type="double" value="0.29"/>
            <value type="double" value="0.40"/>
            <value type="double" value="1"/>
          </property>
        </property>
      </property>
    </property>
  </property>
</channel>
`

// windows are drawn by the X server alone: shadows cost seconds of processor
// time at the start, and each of them is paid again in every picture.
const windows = `<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfwm4" version="1.0">
  <property name="general" type="empty">
    <property name="use_compositing" type="bool" value="false"/>
    <property name="workspace_count" type="int" value="1"/>
  </property>
</channel>
`

// session starts what makes a desktop and nothing else, and never offers to
// save itself. It replaces a file of the package.
const session = `
cat >` + channels + `/xfce4-session.xml <<'EOF'
<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-session" version="1.0">
  <property name="general" type="empty">
    <property name="FailsafeSessionName" type="string" value="Failsafe"/>
    <property name="LockCommand" type="string" value=""/>
    <property name="SaveOnExit" type="bool" value="false"/>
  </property>
  <property name="startup" type="empty">
    <property name="ssh-agent" type="empty"><property name="enabled" type="bool" value="false"/></property>
    <property name="gpg-agent" type="empty"><property name="enabled" type="bool" value="false"/></property>
  </property>
  <property name="sessions" type="empty">
    <property name="Failsafe" type="empty">
      <property name="IsFailsafe" type="bool" value="true"/>
      <property name="Count" type="int" value="4"/>
      <property name="Client0_Command" type="array"><value type="string" value="xfwm4"/></property>
      <property name="Client0_Priority" type="int" value="15"/>
      <property name="Client0_PerScreen" type="bool" value="false"/>
      <property name="Client1_Command" type="array"><value type="string" value="xfsettingsd"/></property>
      <property name="Client1_Priority" type="int" value="20"/>
      <property name="Client1_PerScreen" type="bool" value="false"/>
      <property name="Client2_Command" type="array"><value type="string" value="xfce4-panel"/></property>
      <property name="Client2_Priority" type="int" value="20"/>
      <property name="Client2_PerScreen" type="bool" value="false"/>
      <property name="Client3_Command" type="array"><value type="string" value="xfdesktop"/></property>
      <property name="Client3_Priority" type="int" value="20"/>
      <property name="Client3_PerScreen" type="bool" value="false"/>
    </property>
  </property>
</channel>
EOF
`

// shortcuts are a few: the window manager asks the X server sixteen times for
// each, one after the other, and workspaces and tiles there are none. It
// replaces a file of the package.
const shortcuts = `
cat >` + channels + `/xfce4-keyboard-shortcuts.xml <<'EOF'
<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-keyboard-shortcuts" version="1.0">
  <property name="commands" type="empty">
    <property name="default" type="empty">
      <property name="&lt;Alt&gt;F1" type="string" value="xfce4-popup-applicationsmenu"/>
      <property name="&lt;Primary&gt;&lt;Alt&gt;t" type="string" value="exo-open --launch TerminalEmulator"/>
    </property>
  </property>
  <property name="xfwm4" type="empty">
    <property name="default" type="empty">
      <property name="Escape" type="string" value="cancel_key"/>
      <property name="Left" type="string" value="left_key"/>
      <property name="Right" type="string" value="right_key"/>
      <property name="Up" type="string" value="up_key"/>
      <property name="Down" type="string" value="down_key"/>
      <property name="&lt;Alt&gt;Tab" type="string" value="cycle_windows_key"/>
      <property name="&lt;Alt&gt;&lt;Shift&gt;Tab" type="string" value="cycle_reverse_windows_key"/>
      <property name="&lt;Alt&gt;F4" type="string" value="close_window_key"/>
      <property name="&lt;Alt&gt;F7" type="string" value="move_window_key"/>
      <property name="&lt;Alt&gt;F8" type="string" value="resize_window_key"/>
      <property name="&lt;Alt&gt;F9" type="string" value="hide_window_key"/>
      <property name="&lt;Alt&gt;F10" type="string" value="maximize_window_key"/>
      <property name="&lt;Alt&gt;F11" type="string" value="fullscreen_key"/>
      <property name="&lt;Alt&gt;space" type="string" value="popup_menu_key"/>
      <property name="&lt;Primary&gt;&lt;Alt&gt;d" type="string" value="show_desktop_key"/>
    </property>
  </property>
</channel>
EOF
`

// programs says what opens what, and makes the indexes that programs would
// make or miss at their first start.
const programs = `
cat >/etc/xdg/xfce4/helpers.rc <<'EOF'
WebBrowser=chromium
TerminalEmulator=xfce4-terminal
FileManager=thunar
EOF
cat >/etc/xdg/mimeapps.list <<'EOF'
[Default Applications]
text/html=chromium.desktop
application/xhtml+xml=chromium.desktop
application/pdf=chromium.desktop
x-scheme-handler/http=chromium.desktop
x-scheme-handler/https=chromium.desktop
text/plain=org.xfce.mousepad.desktop
inode/directory=thunar.desktop
image/png=org.xfce.ristretto.desktop
image/jpeg=org.xfce.ristretto.desktop
EOF
rm -f /etc/xdg/autostart/xscreensaver.desktop
update-desktop-database -q
for index in /usr/share/icons/*/index.theme; do gtk-update-icon-cache -q -f $(dirname $index); done
fc-cache -s
runuser -u user -- mkdir -p /home/user/Desktop /home/user/Documents /home/user/Downloads
`
