"""Makes Chakra traces with protobuf's own library, whose descriptors are built here from the published definition."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
SCALARS = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64".split()


def _message(file, name, fields, one_of=0):
    """Adds a message; the fields with numbers from ``one_of`` on exclude each other, if it is not 0."""
    message = file.message_type.add(name=name)
    if one_of:
        message.oneof_decl.add(name="value")
    for field, number, kind, repeated in fields:
        label = _FIELDS.LABEL_REPEATED if repeated else _FIELDS.LABEL_OPTIONAL
        entry = message.field.add(name=field, number=number, label=label)
        if one_of and number >= one_of:
            entry.oneof_index = 0
        if kind in _TYPES:
            entry.type = _TYPES[kind]
        else:
            entry.type, entry.type_name = _FIELDS.TYPE_MESSAGE, f".Trace.{kind}"


def _made():
    file = descriptor_pb2.FileDescriptorProto(name="trace_for_tests.proto", package="Trace", syntax="proto3")
    attribute = [("name", 1, "string", False), ("doc_string", 2, "string", False)]
    for index, kind in enumerate((*SCALARS, "bool", "string", "bytes")):
        _message(file, f"{kind}List", [("values", 1, kind, True)])
        attribute.append((f"{kind}_val", 3 + 2 * index, kind, False))
        attribute.append((f"{kind}_list", 4 + 2 * index, f"{kind}List", False))
    _message(file, "Attribute", attribute, one_of=3)
    _message(file, "Metadata", [("version", 1, "string", False), ("attr", 2, "Attribute", True)])
    _message(file, "IOInfo", [("values", 1, "string", False), ("shapes", 2, "string", False), ("types", 3, "string", False)])
    node = [
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "uint32", False),  # an enumeration has the same wire format
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("inputs", 8, "IOInfo", False),
        ("outputs", 9, "IOInfo", False),
        ("attr", 10, "Attribute", True),
    ]
    _message(file, "Node", node)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("Metadata", "Node", "Attribute")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"Trace.{name}")) for name in names]


Metadata, Node, Attribute = _made()


def node(id, type, after=(), name="", duration=0, **attributes):
    """Makes a node; numbers become 64-bit attributes, texts strings, truth values booleans, lists of them bool_list."""
    made = Node(id=id, type=type, name=name, data_deps=list(after), duration_micros=duration)
    for key, value in attributes.items():
        entry = made.attr.add(name=key)
        if isinstance(value, bool):
            entry.bool_val = value
        elif isinstance(value, list):
            entry.bool_list.values.extend(value)
        elif isinstance(value, str):
            entry.string_val = value
        else:
            entry.int64_val = value
    return made


def encode(nodes):
    """Returns the bytes of a trace."""
    made = bytearray()
    for message in (Metadata(version="0.0.4"), *nodes):
        content = message.SerializeToString()
        length = len(content)
        while length > 127:
            made.append(length & 127 | 128)
            length >>= 7
        made.append(length)
        made += content
    return bytes(made)


def write(folder, traces, stem="trace"):
    """Writes the traces of all ranks; returns the files."""
    files = []
    for rank, nodes in enumerate(traces):
        path = folder / f"{stem}.{rank}.et"
        path.write_bytes(encode(nodes))
        files.append(path)
    return files
