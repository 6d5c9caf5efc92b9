-- Everything above this line is generated from the wire table; below is what reads it.
--
-- A capture may be cut off (snap length), the packets in it may be broken or not ours, and one UDP datagram may be many of ours
-- (segmentation offload: the capture is taken before the card cuts it).  So every read is preceded by a look at how much there is,
-- and nothing a packet says is believed before it is compared with that.

local dlcp = Proto("dlcp", "DLCP gradient transport")

local ftype = { [1] = ftypes.UINT8, [2] = ftypes.UINT16, [4] = ftypes.UINT32, [8] = ftypes.UINT64 }
local all_fields = {}

local function protofield(field)
    local made
    if field.bits == 1 then
        made = ProtoField.new(field.label, field.key, ftypes.BOOLEAN, nil, 8 * field.width, field.mask, field.doc)
    else
        local display = field.hex and base.HEX or base.DEC
        made = ProtoField.new(field.label, field.key, ftype[field.width], field.names, display, field.mask, field.doc)
    end
    all_fields[#all_fields + 1] = made
    return made
end

for _, record in pairs(WIRE.records) do
    for _, field in ipairs(record.fields) do
        field.proto = protofield(field)
        for _, part in ipairs(field.parts or {}) do
            part.proto = protofield(part)
        end
    end
end

local extra = {
    check_status = ProtoField.uint8("dlcp.check.status", "Check status", base.DEC, { [0] = "bad", [1] = "good", [2] = "unverified" }),
    payload = ProtoField.bytes("dlcp.payload", "Payload"),
    payload_length = ProtoField.uint32("dlcp.payload.length", "Payload length"),
    bitmap = ProtoField.bytes("dlcp.bitmap", "Bitmap of missing packets"),
    missing_packets = ProtoField.string("dlcp.missing_packets", "Missing packets"),
    padding = ProtoField.bytes("dlcp.padding", "Padding"),
    reason = ProtoField.string("dlcp.reason", "Reason", base.UNICODE),
    trailing = ProtoField.bytes("dlcp.trailing", "Trailing bytes"),
    datagrams = ProtoField.uint32("dlcp.datagrams", "Datagrams in this one (segmentation offload)"),
}
for _, field in pairs(extra) do
    all_fields[#all_fields + 1] = field
end
dlcp.fields = all_fields

local function problem(name, text, group, severity)
    return ProtoExpert.new("dlcp.expert." .. name, text, group, severity)
end
local experts = {
    short = problem("short", "Shorter than the header", expert.group.MALFORMED, expert.severity.ERROR),
    cut = problem("cut", "The capture ends before the packet does", expert.group.UNDECODED, expert.severity.NOTE),
    version = problem("version", "Unknown version", expert.group.PROTOCOL, expert.severity.ERROR),
    type = problem("type", "Unknown type", expert.group.PROTOCOL, expert.severity.ERROR),
    check = problem("check", "The check does not hold", expert.group.CHECKSUM, expert.severity.ERROR),
    reserved = problem("reserved", "Reserved bits are set", expert.group.PROTOCOL, expert.severity.WARN),
    body = problem("body", "The body is shorter than this type demands", expert.group.MALFORMED, expert.severity.ERROR),
    size = problem("size", "The size contradicts the fields", expert.group.MALFORMED, expert.severity.ERROR),
    bitmap = problem("bitmap", "The bitmap contradicts the count", expert.group.PROTOCOL, expert.severity.WARN),
    trimmed = problem("trimmed", "A switch removed the payload", expert.group.SEQUENCE, expert.severity.NOTE),
    retransmission = problem("retransmission", "Sent before", expert.group.SEQUENCE, expert.severity.NOTE),
    busy = problem("busy", "The receiver cannot take the message", expert.group.SEQUENCE, expert.severity.NOTE),
    abort = problem("abort", "A rank gave up", expert.group.RESPONSE_CODE, expert.severity.WARN),
}
local expert_list = {}
for _, made in pairs(experts) do
    expert_list[#expert_list + 1] = made
end
dlcp.experts = expert_list

local header = WIRE.records.header
local slot = {}
for _, record in pairs(WIRE.records) do
    slot[record] = {}
    for _, field in ipairs(record.fields) do
        slot[record][field.name] = field
    end
end

local element
for _, part in ipairs(slot[header].dtype.parts) do
    if part.name == "element" then
        element = part
    end
end

-- Reads one field as a number; the caller has made sure that it is there.
local function value(tvb, at, record, name)
    local field = slot[record][name]
    return tvb(at + field.byte, field.width):bitfield(field.first, field.bits)
end

local function check_of(tvb, at)
    local total = 0
    for _, run in ipairs(WIRE.checked) do
        total = total + tvb(at + run[1], 2):bitfield(run[2], run[3]) * run[4]
    end
    while total > 65535 do
        total = total % 65536 + math.floor(total / 65536)
    end
    return 65535 - total
end

local function looks_like_dlcp(tvb, at)
    if at + header.bytes > tvb:captured_len() then
        return false
    end
    return value(tvb, at, header, "version") == WIRE.version
        and WIRE.bodies[value(tvb, at, header, "type")] ~= nil
        and value(tvb, at, header, "check") == check_of(tvb, at)
end

-- With the check out of reach, every enumeration and reserved bit that was captured must make sense.
local function cut_looks_like_dlcp(tvb)
    local captured = tvb:captured_len()
    if tvb:reported_len() < header.bytes or captured < WIRE.cut_bytes or captured >= header.bytes then
        return false
    end
    return value(tvb, 0, header, "version") == WIRE.version
        and WIRE.bodies[value(tvb, 0, header, "type")] ~= nil
        and value(tvb, 0, header, "reserved") == 0
        and slot[header].phase.names[value(tvb, 0, header, "phase")] ~= nil
        and element.names[value(tvb, 0, header, "dtype") % 16] ~= nil
end

-- How long the datagram at `at` should be, or nil where its fields do not tell; see expected_bytes() in dlcp/wire/bodies.py.
local function expected_size(tvb, at, left)
    local captured = tvb:captured_len() - at
    if captured < header.bytes or value(tvb, at, header, "version") ~= WIRE.version then
        return nil
    end
    local body = WIRE.bodies[value(tvb, at, header, "type")]
    if body == nil then
        return nil
    end
    local record = body.record and WIRE.records[body.record]
    local fixed = header.bytes + (record and record.bytes or 0)
    if captured < fixed then
        return nil
    end
    if body.tail == "none" then
        return fixed
    elseif body.tail == "payload" then
        local rest = value(tvb, at, header, "length") - value(tvb, at, header, "offset")
        if rest < 0 then
            return nil
        end
        return fixed + (value(tvb, at, header, "trimmed") == 1 and 0 or math.min(rest, value(tvb, at, header, "stride")))
    elseif body.tail == "bitmap" then
        return fixed + math.floor((value(tvb, at + header.bytes, record, "packets") + 7) / 8)
    elseif body.tail == "padding" then
        local datagram = value(tvb, at + header.bytes, record, "datagram")
        return datagram >= fixed and datagram or nil
    end
    return left
end

-- Adds the fields of a record that lie before `stop`; returns their values and whether all were there.
local function add_record(tree, record, tvb, at, stop)
    local values = {}
    for _, field in ipairs(record.fields) do
        if at + field.byte + field.width > stop then
            return values, false
        end
        local range = tvb(at + field.byte, field.width)
        local item = tree:add(field.proto, range)
        values[field.name] = field.bits > 32 and range:uint64() or range:bitfield(field.first, field.bits)
        for _, part in ipairs(field.parts or {}) do
            item:add(part.proto, range)
        end
        if field.name == "bound" then
            item:append_text(string.format(" (%.3f %%)", values.bound / 655.36))
        end
        if field.name:sub(1, 8) == "reserved" and range:bitfield(field.first, field.bits) ~= 0 then
            item:add_proto_expert_info(experts.reserved)
        end
    end
    return values, true
end

-- Lists the set bits of a bitmap as ranges, "3, 7-9", and counts them.
local function ranges_of(tvb, at, bytes, packets)
    local out, count, first = {}, 0, nil
    local function close(last)
        if #out < 64 then
            out[#out + 1] = string.format(first == last and "%d" or "%d-%d", first, last)
        elseif #out == 64 then
            out[65] = "..."
        end
        first = nil
    end
    for byte = 0, bytes - 1 do
        local octet = tvb(at + byte, 1):uint()
        if octet ~= 0 or first then
            for bit = 0, 7 do
                local packet = byte * 8 + bit
                if packet < packets and math.floor(octet / 2 ^ (7 - bit)) % 2 == 1 then
                    count = count + 1
                    first = first or packet
                elseif first then
                    close(packet - 1)
                end
            end
        end
    end
    if first then
        close(packets - 1)
    end
    return table.concat(out, ", "), count
end

local function name_of(names, number)
    return names[number] or string.format("unknown %d", number)
end

local tails = {}

function tails.none(_, _, _, at)
    return at
end

function tails.payload(tree, _, tvb, at, finish, h)
    tree:add(extra.payload_length, finish - at):set_generated()
    local seen = math.min(finish, tvb:captured_len())
    if seen > at then
        tree:add(extra.payload, tvb(at, seen - at))
    end
    if h.trimmed == 1 then
        tree:add_proto_expert_info(experts.trimmed)
    end
    return finish
end

function tails.bitmap(tree, _, tvb, at, finish, _, fields)
    local bytes = math.floor((fields.packets + 7) / 8)
    local seen = math.min(at + bytes, finish, tvb:captured_len()) - at
    if seen > 0 then
        local item = tree:add(extra.bitmap, tvb(at, seen))
        local text, count = ranges_of(tvb, at, seen, math.min(fields.packets, seen * 8))
        tree:add(extra.missing_packets, tvb(at, seen), text):set_generated()
        if seen == bytes and count ~= fields.missing then
            item:add_proto_expert_info(experts.bitmap, string.format("The bitmap shows %d missing packets, not %d", count, fields.missing))
        end
    end
    if fields.busy ~= 0 then
        local why = name_of(slot[WIRE.records.report].busy.names, fields.busy)
        tree:add_proto_expert_info(experts.busy, "The receiver cannot take the message: " .. why)
    end
    return math.min(at + bytes, finish)
end

function tails.padding(tree, _, tvb, at, finish, _, fields)
    local stop = math.max(at, math.min(finish, at - header.bytes - WIRE.records.hello.bytes + fields.datagram))
    local seen = math.min(stop, tvb:captured_len())
    if seen > at then
        tree:add(extra.padding, tvb(at, seen - at))
    end
    return stop
end

-- Shortens UTF-8 text at a character's border.  Some releases of Wireshark hand over text whose last character is cut.
local function clip(text, limit)
    text = text:sub(1, limit)
    local last = text:match("[\192-\247][\128-\191]*$")
    if last then
        local lead = last:byte()
        if #last < (lead < 224 and 2 or lead < 240 and 3 or 4) then
            text = text:sub(1, #text - #last)
        end
    end
    return text
end

function tails.text(tree, _, tvb, at, finish, _, fields)
    local seen = math.min(finish, tvb:captured_len())
    if seen > at then
        tree:add_packet_field(extra.reason, tvb(at, seen - at), ENC_UTF_8 + ENC_STRING)
        fields.reason = clip(tvb(at, seen - at):string(ENC_UTF_8), 120)
    end
    tree:add_proto_expert_info(experts.abort)
    return finish
end

local function describe(h, body, fields, size)
    local kind = name_of(slot[header].type.names, h.type)
    local text = string.format("%s %d → %d", kind:upper(), h.source, h.destination)
    if body.tail == "payload" or kind == "probe" or body.tail == "bitmap" then
        text = text .. string.format(" op %d %s/%d", h.operation, name_of(slot[header].phase.names, h.phase), h.part)
    end
    if body.tail == "payload" then
        text = text .. string.format(
            " [%d + %d of %d] class %d %s", h.offset, size - header.bytes, h.length, h.priority,
            h.protected == 1 and "protected" or "droppable"
        )
    elseif fields.needed then
        text = text .. string.format(" missing %d of %d, needed %d", fields.missing, fields.packets, fields.needed)
        text = text .. (fields.busy ~= 0 and ", " .. name_of(slot[WIRE.records.report].busy.names, fields.busy) or "")
    elseif fields.highest_sequence then
        text = text .. string.format(
            " highest %d received %d marked %d trimmed %d window %d",
            fields.highest_sequence, fields.received, fields.marked, fields.trimmed, fields.window
        )
    elseif fields.nonce then
        text = text .. string.format(" nonce 0x%s, %d bytes", fields.nonce:tohex(), fields.datagram)
    elseif fields.culprit then
        text = text .. string.format(" %s of rank %d: %s", name_of(slot[WIRE.records.abort].kind.names, fields.kind),
            fields.culprit, fields.reason or "")
    end
    return text .. (h.trimmed == 1 and " trimmed" or "") .. (h.retransmission == 1 and " retransmission" or "")
end

-- Dissects what starts at `at`, `left` bytes before the end; returns how many bytes it took and a line for the info column.
local function dissect_one(tvb, root, at, left)
    local captured = tvb:captured_len()
    local size = expected_size(tvb, at, left)
    local used = left
    if size and size < left and looks_like_dlcp(tvb, at + size) then
        used = size
    end
    local finish = at + used
    local tree = root:add(dlcp, tvb(at, math.min(used, captured - at)))

    local first = slot[header].version
    local version = value(tvb, at, header, "version")
    if version ~= WIRE.version then
        tree:add(first.proto, tvb(at + first.byte, first.width)):add_proto_expert_info(experts.version)
        return used, string.format("Unknown version %d", version)
    end
    local h, whole = add_record(tree, header, tvb, at, math.min(finish, captured))
    if not whole then
        tree:add(extra.check_status, 2):set_generated()
        tree:add_proto_expert_info(used < header.bytes and experts.short or experts.cut)
        local kind = name_of(slot[header].type.names, value(tvb, at, header, "type"))
        return used, kind:upper() .. (used < header.bytes and " [too short]" or " [cut off by the capture]")
    end
    local good = h.check == check_of(tvb, at)
    local status = tree:add(extra.check_status, good and 1 or 0)
    status:set_generated()
    if not good then
        status:add_proto_expert_info(experts.check, string.format("The check should be 0x%04x", check_of(tvb, at)))
    end
    local body = WIRE.bodies[h.type]
    if body == nil then
        tree:add_proto_expert_info(experts.type)
        if captured > at + header.bytes then
            tree:add(extra.trailing, tvb(at + header.bytes, math.min(finish, captured) - at - header.bytes))
        end
        return used, string.format("Unknown type %d", h.type)
    end
    if h.retransmission == 1 then
        tree:add_proto_expert_info(experts.retransmission)
    end

    local fields, pos, complete = {}, at + header.bytes, true
    if body.record then
        local record = WIRE.records[body.record]
        local seen = math.min(finish, captured) - pos
        local subtree = seen > 0 and tree:add(tvb(pos, math.min(seen, record.bytes)), record.label) or tree
        fields, complete = add_record(subtree, record, tvb, pos, pos + math.max(seen, 0))
        pos = pos + record.bytes
        if not complete then
            tree:add_proto_expert_info(finish < pos and experts.body or experts.cut)
            fields = {}
        end
    end
    if complete then
        pos = tails[body.tail](tree, dlcp, tvb, pos, finish, h, fields)
        if captured > pos and finish > pos then
            tree:add(extra.trailing, tvb(pos, math.min(finish, captured) - pos))
        end
        if size and size < used and captured < finish and captured < at + size + header.bytes then
            -- Whether another datagram follows in this burst was not captured.
            tree:add_proto_expert_info(experts.cut)
        elseif size == nil or size ~= used then
            local text = size and string.format("%d bytes, but its fields say %d", used, size) or "The fields contradict each other"
            tree:add_proto_expert_info(experts.size, text)
        elseif finish > captured then
            tree:add_proto_expert_info(experts.cut)
        end
    end
    local info = describe(h, body, fields, used) .. (good and "" or " [bad check]")
    tree:append_text(": " .. info)
    return used, info
end

function dlcp.dissector(tvb, pinfo, root)
    local reported, captured = tvb:reported_len(), tvb:captured_len()
    pinfo.cols.protocol = "DLCP"
    if captured == 0 then
        root:add(dlcp, tvb()):add_proto_expert_info(reported == 0 and experts.short or experts.cut)
        pinfo.cols.info = "Empty datagram"
        return reported
    end
    local at, count, info = 0, 0, nil
    while at < reported and at < captured do
        local used, line = dissect_one(tvb, root, at, reported - at)
        info = info or line
        at = at + used
        count = count + 1
    end
    if count > 1 then
        root:add(extra.datagrams, count):set_generated()
        info = "[" .. count .. " datagrams] " .. info
    end
    pinfo.cols.info = info
    return reported
end

local function heuristic(tvb, pinfo, root)
    if not (looks_like_dlcp(tvb, 0) or cut_looks_like_dlcp(tvb)) then
        return false
    end
    -- What follows between the same two ports is ours too, and shown even if it is broken.
    pinfo.conversation = dlcp
    dlcp.dissector(tvb, pinfo, root)
    return true
end

dlcp.prefs.port = Pref.uint("UDP port", WIRE.udp_port, "Datagrams to or from this port are DLCP; others are recognized by their check")
local udp_ports = DissectorTable.get("udp.port")
local bound_port = nil

local function bind_port()
    if bound_port then
        udp_ports:remove(bound_port, dlcp)
        bound_port = nil
    end
    if dlcp.prefs.port > 0 and dlcp.prefs.port < 65536 then
        bound_port = dlcp.prefs.port
        udp_ports:add(bound_port, dlcp)
    end
end

function dlcp.prefs_changed()
    if dlcp.prefs.port ~= bound_port then
        bind_port()
    end
end

bind_port()
dlcp:register_heuristic("udp", heuristic)
